"""ZMTP 3 connections: framing, sockets that survive a killed data plane, and peer processes."""
