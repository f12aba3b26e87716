//! The daemon heddled: reconcile the database with the two halves, unixctl, logging.
