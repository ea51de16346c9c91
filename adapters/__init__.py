"""Real engines and trainers under the same plan that drives the simulator."""
