"""Waves of a block or a system: what to show, GTKWave save files, timing pictures."""
