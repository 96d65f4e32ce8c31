"""What nodes tell, kept in memory: the fleet as it is now, the last hour, and facts for those who watch.

Nothing a node sends raises past `subscriber`: what cannot be read is counted.
"""
