"""Process groups: what several processes need to act as one."""
