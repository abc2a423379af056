"""Lower and compile for hardware that is not here, beside a program that runs on the CPU."""
