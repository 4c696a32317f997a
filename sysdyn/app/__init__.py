"""The command-line application: commands, problem files, reports and plots."""
