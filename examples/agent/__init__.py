"""`make example-agent`: an agent names its session, so that Larder keeps what it needs for the next turn.

`sessions` is the hook for any agent; `__main__` is an agent with one tool, for a vLLM that serves tool calls
(`--enable-auto-tool-choice --tool-call-parser PARSER`) with Larder's connector.
"""
