"""What the API says and takes: one file per noun, msgspec structs, strict. Times are Unix seconds, sizes bytes."""
