"""The only place that touches ctypes or llama_cpp. Above it there are no pointers and no way to abort the process."""
