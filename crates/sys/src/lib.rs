//! Operating-system interfaces: mmap, eventfd, netlink, tun, packet sockets, affinity, NUMA.
