//! Flow key, mask, and the one declarative table of match fields.
