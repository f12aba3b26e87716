//! Tables, learning, translation, controller connections.
