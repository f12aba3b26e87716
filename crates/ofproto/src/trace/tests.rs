//! Traces against the text that Open vSwitch 3.1 printed for the same pipeline.
