module latchwork

go 1.22
