"""Read tables through Arrow, by column: what `yogadl.adapters.arrays` is made of."""
