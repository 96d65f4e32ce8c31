"""Facts on their way out: a bounded bus and its subscribers. Nothing here can hurt the core."""
