//! The recording file format.
