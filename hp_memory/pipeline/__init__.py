"""Pipeline parallel: schedules as data, a backward split into dx and dw, sessions, and the regression harness."""
