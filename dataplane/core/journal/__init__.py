"""State that a restart reads: the recovery table and the id journal, each in a memfd that engines never get."""
