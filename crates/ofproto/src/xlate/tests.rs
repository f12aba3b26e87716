//! Tests of translation as a whole.
