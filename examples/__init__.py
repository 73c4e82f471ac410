"""Schedulers that know nothing of schedcheck, and the few lines that check them."""
