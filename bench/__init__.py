"""Figures: the main job's table (`python -m bench.sim`) and measurements (`python -m bench`)."""
