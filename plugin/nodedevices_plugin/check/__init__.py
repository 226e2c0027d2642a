"""The command nodedevices-check: this machine's devices judged once by the agent's own rules, for scripts.

It starts probes as the agent does, takes one line of each, judges them by the agent's first half of a step
(pipeline.assess), and makes the agent's report of them (status.report). Of kubelet and API server it knows nothing, and
it writes nothing: a running agent does not notice it. A driver that hangs, hangs a probe's process: that one is killed
when the time is up, and the answer is UNKNOWN.
"""
