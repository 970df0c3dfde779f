"""What every GPU kernel costs: compiled and emulated on any machine, timed where there is a GPU."""
