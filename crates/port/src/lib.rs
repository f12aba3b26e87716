//! Receive and transmit queues of every port type.
