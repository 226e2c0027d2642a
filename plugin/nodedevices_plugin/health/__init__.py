"""The health of devices: the state machine, its reasons, and rules by reason. It knows no vendor's numbers.

The way of one event, such as an XID, and what it is called at each step:

    ProbeEvent      nodedevices_probe.protocol     as the probe wrote it into its line
    WaitingEvent    pipeline.routing               of a device that is not known yet; else by the probe that has it
    Meaning         vendors.faults.meaning_of      what the vendor says of its number: reason, Effect, action
    Fault           health.events.note_events      what it means for this device, by the rules; saved
    FaultCondition  health.levels                  what a reading means, where it is no event; for as long as it lasts
    Verdict         health.machine.judge_all       state, reason and action of the device, by the worst of all these
    Notice          health.history.follow_notices  an event that changed no state
    Occurrences     health.history.with_events     how often each reason came
    Blocked         gates.reasons.health           why new containers do not get its ids
"""
