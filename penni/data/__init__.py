"""Images to train and test on: CIFAR-10, folders of images, handwritten digits."""
