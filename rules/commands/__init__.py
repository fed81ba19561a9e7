"""The doit commands this project adds, one module each."""
