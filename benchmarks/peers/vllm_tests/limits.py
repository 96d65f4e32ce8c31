"""Tests of vLLM that can pass only on vLLM's own classes: name → reason."""

_SPIN = "sets or depends on the private `_spin_condition`: Larder's readers sleep on a futex instead"
_RING = "uses `acquire_read` and `acquire_write` and reads the ring's flags, which Larder's queue does not have"
_FORM = "counts the buffers of a pickle or the calls of `recv`: Larder's queue copies from 4 KiB on, and has no socket"

LIMITS = {
    "test_message_queue_shutdown_busy": _SPIN,
    "test_message_queue_shutdown_idle": _SPIN,
    "test_message_queue_idle_wake": _SPIN,
    "test_message_queue_busy_to_idle": _SPIN,
    "test_reader_rechecks_shm_after_idle_wait_timeout_without_notify": _RING,
    "test_acquire_read_releases_slot_when_reader_raises": _RING,
    "test_tensor_broadcast": _FORM,
    **{
        f"test_broadcast_retains_values_after_ring_reuse[{size}-{kind}]": _FORM
        for size in ("inline", "overflow")
        for kind in ("tensor", "numpy", "numpy_readonly")
    },
    "test_reader_timeout_caps_indefinite_waits": "tests the private class `ReadTimeoutWithWarnings`",
    "test_blocking_unread_object": "the writer reads its objects in place of two readers, which Larder's store does "
    "not count, and the oldest unread object has to block the others",
}
