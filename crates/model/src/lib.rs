//! Part of teiji.
