"""Commands for this machine: start, stop and restart Larder, check the machine, maintain the database."""
