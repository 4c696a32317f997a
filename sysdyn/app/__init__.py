"""The application: command line, problem files, views and plots."""
