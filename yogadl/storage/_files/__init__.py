"""Files and folders of one machine, or of several that share them."""
