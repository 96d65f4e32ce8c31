"""Where bytes are. Today L1: sealed memfds that engines map; nothing here decides who may stay."""
