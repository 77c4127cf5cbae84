"""What other libraries check of our environments and wrappers: `make interop`, in a virtual environment of its own."""
