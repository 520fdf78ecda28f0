"""The parts of `yogadl.adapters.jax`: what may go on to a device, how it lies there, and reading it."""
