"""Pure decisions: which block goes where, who may stay, what is refused and why.

Takes messages and the time, returns answers and events. Imports no socket, thread, clock, logger or metric; what it
needs from outside (memory, the barrier) comes in through the ports of `ports`. One thread runs it.
"""
