"""A-SRPT: gangs in the order in which a virtual machine ends them."""
