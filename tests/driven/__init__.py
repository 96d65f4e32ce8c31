"""Engines of the engine socket that let the data plane copy: real processes on the emulated device, and on a GPU if
any."""
