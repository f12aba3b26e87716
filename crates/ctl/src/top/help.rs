//! What the columns mean: the page behind `?`.

/// Its lines.
pub(super) const PAGE: &str = "\
WORKERS, a line for each; rates are of the time between two frames
  WORKER   processor that it runs on; with * it polls only queues that are bound to it
  NUMA     the processor's memory node
  BUSY%    of the time, with packets; the bars are the last frames, the newest on the right
  SLEEP%   of the time, asleep; the rest of the time it looked for packets and found none
  Mpps     million packets a second
  cyc/pkt  cycles per packet of the time with packets
  B/pkt    bytes per packet of the ports that it polls. A segment train of 64 KiB is one
           packet: it costs more cycles than a small one, and fewer for each byte
  L0% L1% L2% miss%
           where the flow cache had the answer: the flow of the packet before, an exact
           match, a wildcarded entry, nowhere. Misses come with new flows and rule changes
  rx parse lookup transl actions tx
           cycles per packet of each stage; transl is what misses cost

LOST     packets that somebody may miss: full queues, limits, errors. Red: it happens now
DROPPED  packets that a rule drops, or that were for a device that is down, such as the
         port of a bridge that nobody has set up. A healthy switch has these
         `heddle drops` shows the rules and examples; docs/drops.md explains the names

PORTS
  IN, OUT  packets (kpps: thousands a second) and Gbit/s (billions), as the switch sees them
  DROPS/s  packets that came in by the port and were dropped, about so many a second, with
           the name of the most frequent drop; red if it is a loss
  the bars are the packets of the last frames, the highest bar the most of them

QUEUES
  WORKER   who polls the receive queue; nobody: it is not polled
  MINUTE%  its share of that worker's time in the last minute; - : not known yet";

#[cfg(test)]
mod tests {
    use super::super::frame;

    #[test]
    fn each_column_is_explained() {
        assert!(super::PAGE.lines().all(|l| l.chars().count() <= 100));
        for column in frame::columns() {
            assert!(super::PAGE.contains(column), "{column}");
        }
    }
}
