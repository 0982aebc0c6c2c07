//! Durations, rates and sizes as policies write them.
