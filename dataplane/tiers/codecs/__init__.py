"""Codecs, with which tiers store blocks in fewer bytes. `compress` of a tier's record names a codec.

    codec     the interface; the header of a stored block says how it is encoded (`Encoding`)
    zstd      lossless: byte planes, then zstd
    fp8       lossy: one byte for each element, and a scale for each head of each token
    decoding  decodes a stored block by its header

The mover encodes blocks on threads of the tier before it stores them. When a tier loads a block, it decodes the block
as its header says, whatever the record says now. A decoded block never exceeds the memory that it is loaded into.
"""
