"""Blocks on local disks: preallocated segment files of slots, an append-only journal, O_DIRECT.

Each directory is complete in itself, so that a disk that fails takes only its own blocks along:

    superblock.json   cluster, node, identity of the directory, size of its segments
    lock              held by the process that uses the directory
    segment-000000    a page that gives the size of its slots, then the slots: a header of 4 KiB and the data
    journal           what each slot holds; the headers say the same, but take longer to read

`alignment` moves bytes, `own_file` opens files, `superblock` identifies and locks a directory, `segment_file` and
`slot_journal` are its files, `recovery` reads them, `directory` is a directory in use, `disk_tier` the tier over
several. `offline` is for the command line. The format is in docs/reference/tier-format.md.

Memory per block: about 200 bytes (48-byte name and slot number in a dict, the rest in numpy arrays per segment).
"""

from dataplane.tiers.disk.disk_tier import check_parameters, open_disk_tier
from dataplane.tiers.disk.parameters import DiskParameters
from dataplane.tiers.registry import TierType

TYPE = TierType(DiskParameters, open_disk_tier, check=check_parameters)
