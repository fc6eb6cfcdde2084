"""riverrun."""
from riverrun import _threads
