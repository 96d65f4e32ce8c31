"""GPU copies: choose the pinned blocks that have a second copy in GPU memory, and manage that memory."""
