"""What the facts say about each device: the XID catalogue (data) and the state machine.

`machine.judge_all` is the entry point. Everything here is pure: facts, rules and time in, verdicts out.
"""
