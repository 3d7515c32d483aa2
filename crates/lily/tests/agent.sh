#!/bin/sh
# In the place of an agent: tells its arguments and its environment.
printf '%s\n' "$@"
env
