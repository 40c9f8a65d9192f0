"""The index of the timer topic's queue, in RocketMQ's files.

    timerwheel               which units of the timer log are due in each slot of time
    timerlog/<20 digits>     one unit for each message of the queue, in its order
    config/timercheck        up to where both are complete, and which slots are passed
    config/timermetrics      how many messages of each topic wait

The log of the store is the truth: all of this can be made again from the queue.
"""
