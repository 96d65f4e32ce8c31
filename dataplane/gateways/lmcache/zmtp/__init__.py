"""ZMTP 3 connections: framing, sockets that survive a killed data plane, peer processes, and pending requests."""
