//! The page behind `?`, which explains the columns.

/// The lines of the page.
pub(super) const PAGE: &str = "\
WORKERS, a line for each; rates are of the time between two frames
  WORKER   processor that it runs on; *: it polls only queues bound to it
  NUMA     the processor's memory node
  BUSY%    of the time, with packets; bars: the last frames, newest on the right
  SLEEP%   of the time, asleep; else it looked for packets and found none
  Mpps     million packets a second
  cyc/pkt  cycles per packet, of the time with packets
  B/pkt    bytes per packet of the ports that it polls. A segment train of
           64 KiB is one packet: many cycles for a packet, few for a byte
  L0% L1% L2% miss%
           where the flow cache had the answer: the flow of the packet before,
           an exact match, a wildcarded entry, nowhere (new flows, rule changes)
  rx parse lookup transl actions tx
           cycles per packet of each stage; transl is what misses cost

LOST     packets that somebody may miss: full queues, limits, errors.
         Red: it happens now
DROPPED  packets that a rule drops, or that were for a device that is down,
         such as a bridge's own that nobody has set up: a healthy switch has
         these. `heddle drops` shows rules and examples

PORTS
  IN, OUT  packets (kpps: thousands a second) and Gbit/s
  DROPS/s  packets that came in by the port and were dropped, about so many,
           and the name of the most frequent drop. Red: it is a loss
  bars     packets of the last frames; the highest bar is the most of them

QUEUES
  WORKER   who polls the receive queue; nobody: it is not polled
  MINUTE%  its share of that worker's time in the last minute; -: not known yet
  port on node N  the port's device is on NUMA node N, and the worker is not";

#[cfg(test)]
mod tests {
    use super::super::frame;

    #[test]
    fn each_column_is_explained() {
        assert!(super::PAGE.lines().all(|l| l.chars().count() <= 80));
        for column in frame::columns() {
            assert!(super::PAGE.contains(column), "{column}");
        }
    }
}
