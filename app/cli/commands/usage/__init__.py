"""Commands for usage by tenant and for prefill rates."""
